// Workload server on Netty, over BoringSSL (netty-tcnative): its library is unpacked to the folder for temporary files,
// loaded and deleted at once. In: requests of the protocol in integration/src/shape.rs, `TLS_CERTIFICATE`, `TLS_KEY`.
// Out: answers of exactly that shape, with the handling time in `x-handler-ns`. Prints `ready PORT`. Knows nothing of
// the agent.

import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.http.DefaultHttpContent;
import io.netty.handler.codec.http.DefaultHttpResponse;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpObjectAggregator;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.handler.codec.http.QueryStringDecoder;
import io.netty.handler.ssl.OpenSsl;
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import io.netty.handler.ssl.SslProvider;
import java.io.File;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.concurrent.TimeUnit;

public final class Netty {
    /** One exchange of a connection. */
    private static final class Answerer extends SimpleChannelInboundHandler<FullHttpRequest> {
        @Override
        protected void channelRead0(ChannelHandlerContext context, FullHttpRequest request) {
            long begun = System.nanoTime();
            QueryStringDecoder uri = new QueryStringDecoder(request.uri());
            long delay = option(uri, "d", 0);
            Runnable answer = () -> answer(context, request.method(), HttpUtil.isKeepAlive(request), uri, begun);
            if (delay == 0) {
                answer.run();
            } else {
                context.executor().schedule(answer, delay, TimeUnit.MICROSECONDS);
            }
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            context.close();
        }
    }

    private static long option(QueryStringDecoder uri, String name, long otherwise) {
        List<String> values = uri.parameters().get(name);
        return values == null ? otherwise : Long.parseLong(values.get(0));
    }

    private static void answer(
            ChannelHandlerContext context, HttpMethod method, boolean keeps, QueryStringDecoder uri, long begun) {
        String[] parts = uri.path().split("/");
        int status = Integer.parseInt(parts[3]);
        boolean chunked = parts[4].equals("chunked");
        int size = Integer.parseInt(parts[5]);
        boolean bodiless = method.equals(HttpMethod.HEAD) || status == 204 || status == 304;
        HttpResponse head = new DefaultHttpResponse(HttpVersion.HTTP_1_1, HttpResponseStatus.valueOf(status));
        if (chunked && status != 204 && status != 304) {
            HttpUtil.setTransferEncodingChunked(head, true);
        } else if (status != 204 && status != 304) {
            HttpUtil.setContentLength(head, size);
        }
        if (!keeps) {
            HttpUtil.setKeepAlive(head, false);
        }
        head.headers().set("x-handler-ns", System.nanoTime() - begun);
        context.write(head);
        // A client that expects no body asks again after the head, which must not happen before the end of this answer.
        boolean isWhole = size == 0 && !chunked;
        if (bodiless || isWhole) {
            end(context, keeps);
        } else {
            piece(context, keeps, size, 0, uri);
        }
    }

    /** Writes the piece with this number, and those behind it when their time has come. */
    private static void piece(ChannelHandlerContext context, boolean keeps, int size, int number, QueryStringDecoder uri) {
        int pieces = (int) option(uri, "p", 1);
        long gap = option(uri, "g", 0);
        int from = (int) ((long) size * number / pieces);
        int to = (int) ((long) size * (number + 1) / pieces);
        if (to > from) {
            context.writeAndFlush(new DefaultHttpContent(Unpooled.wrappedBuffer(new byte[to - from])));
        }
        if (number + 1 == pieces) {
            end(context, keeps);
        } else {
            context.executor().schedule(
                    () -> piece(context, keeps, size, number + 1, uri), gap, TimeUnit.MICROSECONDS);
        }
    }

    private static void end(ChannelHandlerContext context, boolean keeps) {
        ChannelFuture last = context.writeAndFlush(LastHttpContent.EMPTY_LAST_CONTENT);
        if (!keeps) {
            last.addListener(ChannelFutureListener.CLOSE);
        }
    }

    public static void main(String[] arguments) throws Exception {
        OpenSsl.ensureAvailability();
        SslContext tls = SslContextBuilder
                .forServer(new File(System.getenv("TLS_CERTIFICATE")), new File(System.getenv("TLS_KEY")))
                .sslProvider(SslProvider.OPENSSL)
                .build();
        ServerBootstrap server = new ServerBootstrap()
                .group(new NioEventLoopGroup(2))
                .channel(NioServerSocketChannel.class)
                .option(ChannelOption.SO_BACKLOG, 1024)
                .childOption(ChannelOption.TCP_NODELAY, true)
                .childHandler(new ChannelInitializer<SocketChannel>() {
                    @Override
                    protected void initChannel(SocketChannel channel) {
                        channel.pipeline()
                                .addLast(tls.newHandler(channel.alloc()))
                                .addLast(new HttpServerCodec())
                                .addLast(new HttpObjectAggregator(64 << 20))
                                .addLast(new Answerer());
                    }
                });
        Channel listening = server.bind(new InetSocketAddress("127.0.0.1", 0)).sync().channel();
        System.out.println("ready " + ((InetSocketAddress) listening.localAddress()).getPort());
    }
}
