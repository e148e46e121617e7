"""The protocols of the server: what arrives, checked, as images, and answers in the words of each protocol."""
