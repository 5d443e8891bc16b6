"""The files of a language run: where they lie, how they are written, and what they say to other people's tools."""
