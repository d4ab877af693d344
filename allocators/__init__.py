"""KV-cache allocators: memory only. They know neither the clock nor the life of a request."""
