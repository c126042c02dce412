"""Figures, tables and pages made from data and records, without torch."""
