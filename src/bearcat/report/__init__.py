"""What a person looks at: figures (later tables and pages) made from data and records, without torch."""
