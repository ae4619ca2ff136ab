"""What runs inside Spark, Ray Data and Feast on behalf of `stelae.spark`, `stelae.data`,
`stelae.feast`."""
