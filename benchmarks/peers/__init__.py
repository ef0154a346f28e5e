"""The same quantities by other means. The file of a peer imports its library, and is imported when it is used."""
