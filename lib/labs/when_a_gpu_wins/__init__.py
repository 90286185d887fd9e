"""When a GPU wins: the border between a CPU and a card, what moves it, what training costs, and what would help."""
