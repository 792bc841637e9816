"""What every strategy gives with no argument but its period."""
