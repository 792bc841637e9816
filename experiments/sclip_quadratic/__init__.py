"""SClip-EF and four others on quadratics with heavy-tailed noise: how far from the optimum, as time goes on."""
