"""What makes a language run complete: its files, its weights, its data, its history and its samples belong together."""
