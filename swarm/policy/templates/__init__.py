"""Chat templates, which are programs of whoever made the model: rendered in a process of their own."""
