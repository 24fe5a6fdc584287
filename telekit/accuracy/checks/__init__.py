"""Beside a pair: replicas over ranks, non-determinism, overflow and other anomalies."""
