"""How fast does HSA2C learn classic control, beside stable-baselines3's A2C?"""
