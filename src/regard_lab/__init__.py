"""What trains, compares, measures and looks up: the laboratory of `regard`, which the library never imports."""
