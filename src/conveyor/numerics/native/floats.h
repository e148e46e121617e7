/* Values of the kernels that follow: float32. Included once for each set of them. */
#undef VALUE
#undef NAME
#undef WIDE
#undef NARROW
#undef ROUND
#define VALUE float
#define NAME(name) name
#define WIDE(value) (value)
#define NARROW(value) (value)
#define ROUND(value) (value)
