"""What a maintainer runs on this repository, and no user ever does."""
