"""SClip-EF and others on logistic regression with heavy-tailed noise: test loss against rounds."""
