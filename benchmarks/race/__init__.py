"""Who reaches a validation loss first, over a real slow link?"""
