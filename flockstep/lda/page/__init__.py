"""The page that shows topics, and its own files."""
