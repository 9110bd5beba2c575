"""What JAX functions are made of, as data: jaxprs traced, evaluated, sliced and scheduled; cells found in them."""
