"""Feature maps phi of kernel attention, the projections that random ones draw, norms, and the sines of positions."""
