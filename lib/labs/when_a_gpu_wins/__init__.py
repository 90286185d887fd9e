"""When a GPU wins: the border between a processor and a card, what moves it, what it costs, and what would help."""
