"""Variational inference itself: from batches of documents to topics, compiled."""
