"""`bearcat serve`: a model behind HTTP, and a page to drop recordings on (docs/serve.md)."""
