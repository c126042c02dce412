"""Methods: recipes and the ingredients they are made of."""
