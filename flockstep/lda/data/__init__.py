"""Corpora: texts, tables and files of counts, in memory or as streams."""
