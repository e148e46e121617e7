"""The engines that compute a model's answers, and the choice between them."""
