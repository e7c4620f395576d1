"""The liquid-xenon calorimeter: sensors, faces, positions, coordinates, solid angles; numpy only."""
