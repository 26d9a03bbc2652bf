"""Adapters: one file a provider API, each a model callable. Importing one loads no SDK; making one does."""
