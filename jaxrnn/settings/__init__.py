"""Files of settings: a pydantic model of each command's keys, read by OmegaConf, with errors that name the key."""
