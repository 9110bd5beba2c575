"""Tools on jaxprs: trace, evaluate, slice and schedule functions, and recognise recurrent cells."""
