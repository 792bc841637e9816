"""What users write as text, on the command line and in files: strategies, workloads, optimizers and misfortune."""
