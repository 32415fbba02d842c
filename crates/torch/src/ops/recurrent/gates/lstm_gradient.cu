const I n = i[0], h = i[1], H = (I)state.size(1);
    const T in = (T)workspace(n, h), forget = (T)workspace(n, H + h), candidate = (T)workspace(n, H * 2 + h), out = (T)workspace(n, H * 3 + h);
    const T now = tanh((T)cell(n, h)), g = $hidden$;
    const T c = g * out * ((T)1 - now * now) + $cell$;
    grad_state.set(c * forget, n, h);
    grad_gates.set(c * candidate * ((T)1 - in) * in, n, h);
    grad_gates.set(c * (T)state(n, h) * ((T)1 - forget) * forget, n, H + h);
    grad_gates.set(c * in * ((T)1 - candidate * candidate), n, H * 2 + h);
    grad_gates.set(g * now * ((T)1 - out) * out, n, H * 3 + h);
