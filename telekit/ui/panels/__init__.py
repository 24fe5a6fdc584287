"""Explorers, one file a chapter."""
