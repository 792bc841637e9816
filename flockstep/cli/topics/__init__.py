"""What the commands of ``flockstep lda`` do, and their options."""
