"""The protocols of the server: checked requests become images, logits become answers in each protocol's form."""
