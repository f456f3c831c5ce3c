// A circuit relay of libp2p for `labs.lattica_punching`, since lattica has none.
//
//     node circuit_relay.mjs FOLDER HOST PORT
//
// FOLDER has the packages. The relay reserves places for peers, and passes on what they tell each other about them. It
// prints its address as soon as it listens, and for each connection the peer and the address from which it comes.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

// The packages need it, and Node 20 lacks it.
Promise.withResolvers ??= () => {
  const made = {}
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}

const [folder, host, port] = process.argv.slice(2)
const say = (news) => console.log(JSON.stringify(news))

const load = async (name) => {
  const place = join(folder, 'node_modules', name)
  const { exports } = JSON.parse(readFileSync(join(place, 'package.json'), 'utf8'))
  return import(pathToFileURL(join(place, exports['.'].import)))
}

const { createLibp2p } = await load('libp2p')
const { circuitRelayServer } = await load('@libp2p/circuit-relay-v2')
const { gossipsub } = await load('@libp2p/gossipsub')
const { identify } = await load('@libp2p/identify')
const { noise } = await load('@libp2p/noise')
const { ping } = await load('@libp2p/ping')
const { tcp } = await load('@libp2p/tcp')
const { yamux } = await load('@libp2p/yamux')

const address = `/ip4/${host}/tcp/${port}`
const node = await createLibp2p({
  addresses: { listen: [address], announce: [address] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  connectionManager: { inboundConnectionThreshold: 1000 }, // per second and machine
  services: {
    identify: identify(),
    ping: ping(),
    pubsub: gossipsub(),
    relay: circuitRelayServer({ reservations: { maxReservations: 1000 } })
  }
})
node.services.pubsub.subscribe('p2p-circuit-broadcast') // by which lattica tells addresses
node.addEventListener('connection:open', ({ detail: { remotePeer, remoteAddr } }) => {
  node.services.pubsub.direct.add(remotePeer.toString()) // lattica joins no mesh with its relay
  say({ connected: remotePeer.toString(), port: Number(remoteAddr.toString().split('/')[4]) })
})
say({ address: `${address}/p2p/${node.peerId}` })
