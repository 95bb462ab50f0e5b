"""The pages, one module each with its routes as ``PAGE``; a new module is found without being listed."""
