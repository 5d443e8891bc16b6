"""Public bugs of reinforcement-learning trainers, re-created as wrong and right forms side by side."""
