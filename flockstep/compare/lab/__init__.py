"""A laboratory of slow links on one machine: nodes as network namespaces, for root on Linux."""
