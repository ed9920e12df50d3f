"""Text or bytes to changes and back: pure, no input or output."""
