"""The web server for a class or for one user, and the static site's pages."""
