const I n = (I)x.size($rank$); const i64 label = wrapped($label$, n);
const T own = (T)x($own$), g = $incoming$ / (T)n$weight$;
T sum = 0;
for (I j = 0; j < n; ++j) {
    const T z = (T)margin - own + (T)x($class$);
    const T h = j != label && z > 0 ? (power == 1 ? g : 2 * g * z) : (T)0;
    if (j != label) grad_x.set(h, $class$);
    sum -= h;
}
grad_x.set(sum, $own$);
