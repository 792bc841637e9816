"""Starting real nodes: as child processes, as threads, or as processes that another launcher started."""
