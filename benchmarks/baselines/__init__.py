"""The same work as an ordinary user of the libraries would write it."""
