"""What people look at: figures in a journal's column, one interactive page, the terminal."""
