"""Cross-entropy done again, its gradient, and a vocabulary that ranks share."""
