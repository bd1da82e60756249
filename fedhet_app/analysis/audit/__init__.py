"""The allocation audit: does an estimate know the clients' data, or their devices?"""
