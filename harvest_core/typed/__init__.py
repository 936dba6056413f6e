"""From a function's type hints to the JSON of its payloads and back, strictly."""
