"""A mixture done again: the router and its losses, the choice, the exchange of rows, grouped linear layers."""
