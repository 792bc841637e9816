"""What several commands share: consoles, options, progress, tables, supervision."""
