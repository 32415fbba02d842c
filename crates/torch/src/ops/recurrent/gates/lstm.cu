const I n = i[0], h = i[1], H = (I)hidden.size(1); const T before = (T)state(n, h);
const T in = sigmoid($input$), forget = sigmoid($forget$), candidate = tanh($cell$), out = sigmoid($output$);
const T now = forget * before + in * candidate;
cell.set(now, n, h);
hidden.set(out * tanh(now), n, h);
workspace.set(in, n, h);
workspace.set(forget, n, H + h);
workspace.set(candidate, n, H * 2 + h);
workspace.set(out, n, H * 3 + h);
